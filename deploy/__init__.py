"""Files to deploy the service with, and the programs that write some of them."""
