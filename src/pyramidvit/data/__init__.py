"""From files to batches: pictures, folders, checks, augmentation, loading, generated scenes."""
