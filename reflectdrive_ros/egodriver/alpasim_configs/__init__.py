"""Hydra files for AlpaSim's wizard: `driver=reflectdrive` selects the model, with cameras placed as the network's."""
