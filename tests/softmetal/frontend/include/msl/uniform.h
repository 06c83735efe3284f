// <metal_uniform>: a value that is the same in all threads; made by make_uniform(), read as the value. That it is the same is not checked.
#pragma once
namespace metal {
template <class T> struct uniform {
  uniform() = default;
  MSL_INLINE constexpr operator T() const { return value_; }

 private:
  MSL_INLINE constexpr explicit uniform(T value) : value_(value) {}
  template <class U> friend constexpr uniform<U> make_uniform(U value);
  T value_;
};
template <class T> MSL_INLINE constexpr uniform<T> make_uniform(T value) { return uniform<T>(value); }
template <class T> MSL_INLINE constexpr uniform<T> make_uniform(uniform<T> value) { return value; }
#define MSL_X(op) \
  template <class T> MSL_INLINE constexpr auto operator op(uniform<T> a, uniform<T> b) { return make_uniform((T)a op (T)b); }
MSL_X(+) MSL_X(-) MSL_X(*) MSL_X(/) MSL_X(%) MSL_X(&) MSL_X(|) MSL_X(^) MSL_X(<<) MSL_X(>>)
MSL_X(<) MSL_X(>) MSL_X(<=) MSL_X(>=) MSL_X(==) MSL_X(!=)
#undef MSL_X
}  // namespace metal
