"""What is trained; apart from the script, which imports TensorFlow, so that its tests need not."""

SAMPLES, BATCH = 480, 24
