"""The operator's pages. Each page and its endpoints of /platform/api are wrappers around the same control function."""
