// Attention from non-negative features on a CPU; see attention.h.

#include "attention.h"

EXPORT_ATTENTION(false)
