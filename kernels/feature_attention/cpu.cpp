// Attention from log-features on a CPU; see attention.h.

#include "attention/attention.h"

EXPORT_ATTENTION(true)
