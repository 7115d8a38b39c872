// Attention from log-features on a CPU; see attention.h.

#include "attention.h"

EXPORT_ATTENTION(true)
