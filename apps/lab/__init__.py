"""Looking at a run that is there: live, beside another, why it went as it did, as a data set."""
