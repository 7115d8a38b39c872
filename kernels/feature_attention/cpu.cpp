// Attention from log-features on a CPU; see attention.h.

#include "attention.h"

EXPORT_ATTENTION(feature_attention, true, float, float32)
EXPORT_ATTENTION(feature_attention, true, double, float64)
