"""Export to formats of other runtimes: ONNX, torch.export programs and CTranslate2."""
