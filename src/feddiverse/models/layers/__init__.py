"""The models' layers for one CPU thread: in C (`native`), by PyTorch (`nhwc`), and the models made of them (`fast`)."""
