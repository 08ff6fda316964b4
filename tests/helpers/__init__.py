"""What several tests share: sources, datasets, programs that run as processes of their own."""
