"""The experiments of BFTrainer (Liu et al., 2021), with a module for each group of figures."""
