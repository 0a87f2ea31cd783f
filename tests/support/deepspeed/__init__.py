"""DeepCompile on a CPU: its operators over gloo, and graphs with them."""
