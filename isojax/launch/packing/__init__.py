"""What a config refers to, as one file that runs elsewhere: `isojax pack my.yaml`."""
