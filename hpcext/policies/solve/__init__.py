"""The division problems that policies state, solved by apportionment or an integer programme."""
