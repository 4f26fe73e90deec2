// No code: for libraries that only need to exist, or to need another library.
