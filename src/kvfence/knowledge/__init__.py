"""What was learned of engines by reading and running their releases: data with a source per row."""
