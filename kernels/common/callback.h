// A reference to something that can be called, without a template argument for it: the function that takes one is
// compiled once, whatever its callers pass. std::function would copy what it calls, and its header costs more than that.

#pragma once

template <class... Arguments>
class Callback {
public:
    template <class Callable>
    Callback(const Callable& callable)
        : callable(&callable), call([](const void* callable, Arguments... arguments) {
              (*static_cast<const Callable*>(callable))(arguments...);
          }) {}

    void operator()(Arguments... arguments) const { call(callable, arguments...); }

private:
    const void* callable;
    void (*call)(const void*, Arguments...);
};
