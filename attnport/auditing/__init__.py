"""What a file gives away: where and by whom it was made, notes and source lines, data among its constants."""
