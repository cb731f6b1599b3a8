"""The compiled walk under AddressSanitizer, fed with damaged pages."""
