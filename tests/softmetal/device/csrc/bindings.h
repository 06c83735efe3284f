// What bindings.cpp shows to Python, in standard types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace softmetal {

int64_t install(const std::vector<std::string>& composite_ops, const std::vector<std::string>& absent_ops);
std::map<std::string, int64_t> memory_numbers_map();
std::map<std::string, int64_t> memory_peaks_map();
int64_t calls(const std::string& op);
int64_t host_copy_count();
int64_t synchronization_count();

void allow_wide_types(bool allow);
void empty_cache();
bool set_fault(const std::string& name, bool on);
void forget_graphs();
void set_available(bool available);
void set_macos(unsigned major, unsigned minor);
void set_recommended_max_memory(size_t bytes);
void set_memory_fraction(double ratio);
void set_pool_name(const std::string& name);
void set_op_absent(const std::string& op, bool absent);
void reset_memory_peaks();
void forget_outside();
std::map<std::string, int64_t> call_counts();
void reset_counters();
void keep_busy(double seconds);  // until then whoever waits for the device really waits
size_t max_buffer_length();

}  // namespace softmetal
