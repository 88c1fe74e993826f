"""Documents made of an audit: one module a format."""
