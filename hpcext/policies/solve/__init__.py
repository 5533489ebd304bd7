"""Solves the divisions that policies state: exactly by apportionment, or by an integer program."""
