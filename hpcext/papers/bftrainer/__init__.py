"""The experiments of BFTrainer (Liu et al., 2021): one module for a group of figures."""
