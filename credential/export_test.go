package credential

// BeforeRead has hook called before each file is read. For tests; not while f is in use.
func (f *Files) BeforeRead(hook func(name string)) {
	read := f.read
	f.read = func(name string, limit int64) ([]byte, error) {
		hook(name)
		return read(name, limit)
	}
}
