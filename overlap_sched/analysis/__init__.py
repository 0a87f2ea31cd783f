"""Questions about many orders: what another GiB buys (``frontier``), what wrong times cost (``robustness``)."""
