"""What a bundle's files may be laid out for instead, one layout in each file, found by the file's name."""
