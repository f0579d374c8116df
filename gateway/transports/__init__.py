"""RCP over HTTP, server-sent events and stdio. Bytes in, bytes out: what they mean is the dispatcher's business."""
