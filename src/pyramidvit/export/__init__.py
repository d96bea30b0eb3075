"""Networks as files that other programs run: ONNX, OpenVINO's, torch's own. Each is proven equal before it gets its name."""
