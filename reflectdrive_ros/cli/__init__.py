"""The commands of `reflectdrive`: one file each."""
