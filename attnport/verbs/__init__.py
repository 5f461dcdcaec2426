"""The verbs, one in each file. Only this package joins the stages."""
