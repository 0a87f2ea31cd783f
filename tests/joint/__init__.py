"""Tests of joint graphs."""
