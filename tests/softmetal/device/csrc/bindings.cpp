// The Python face of the device: plain numbers and names only, so that this file needs pybind11 but none of torch's headers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings.h"

namespace py = pybind11;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace softmetal;
  m.def("install", &install, "Put the device into torch's dispatcher; returns the number of ops that fall back to the CPU.");
  m.def("allow_wide_types", &allow_wide_types, "Let float64 and complex128 live on the device, as on no Mac.");
  m.def("empty_cache", &empty_cache);
  m.def("set_fault", &set_fault, "Switch a fault of the stock kernels by name; False if there is none of that name.");
  m.def("forget_graphs", &forget_graphs);
  m.def("set_available", &set_available);
  m.def("set_macos", &set_macos);
  m.def("set_recommended_max_memory", &set_recommended_max_memory);
  m.def("set_memory_fraction", &set_memory_fraction);
  m.def("set_pool_name", &set_pool_name);
  m.def("set_op_absent", &set_op_absent);
  m.def("memory_numbers", &memory_numbers_map);
  m.def("memory_peaks", &memory_peaks_map);
  m.def("reset_memory_peaks", &reset_memory_peaks);
  m.def("forget_outside", &forget_outside);
  m.def("call_counts", &call_counts);
  m.def("calls", &calls);
  m.def("host_copies", &host_copy_count);
  m.def("synchronizations", &synchronization_count);
  m.def("reset_counters", &reset_counters);
  m.def("keep_busy", &keep_busy, "Until then whoever waits for the device really waits.");
  m.def("max_buffer_length", &max_buffer_length);
}
