"""What people read, as tables and sentences, and the same figures as data; a module for each answer."""
