// Attention from non-negative features on a CPU; see attention.h.

#include "attention.h"

EXPORT_ATTENTION(linear_attention, false, float, float32)
EXPORT_ATTENTION(linear_attention, false, double, float64)
