"""Noise of the pretraining objectives: masking, denoising, span corruption, permutation, pairs."""
