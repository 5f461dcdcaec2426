"""The verbs, one file each: the only package that joins the stages."""
