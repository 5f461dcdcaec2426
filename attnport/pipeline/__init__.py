"""One verb a file: the only package that joins the stages."""
