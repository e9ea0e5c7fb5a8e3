"""Pages for people and /platform/api, over the control plane. `site_map.py` lists them all."""
