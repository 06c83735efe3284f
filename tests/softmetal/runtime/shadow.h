#pragma once
#include <cstddef>
#include <cstdint>
namespace smr {
// Drops the shadow pages of a block that is being freed.
void shadow_release(uintptr_t begin, size_t size);
}
