package journal

// latelyEach bounds the entries of either half.
const latelyEach = 4096

// lately remembers what was noted last under some thousands of keys. The zero value
// is ready.
type lately[V any] struct{ young, old map[string]V }

func (l *lately[V]) note(key string, value V) {
	if l.young == nil || len(l.young) >= latelyEach {
		l.old, l.young = l.young, map[string]V{}
	}
	l.young[key] = value
}

// get gives the zero value where nothing is remembered.
func (l *lately[V]) get(key string) V {
	if value, some := l.young[key]; some {
		return value
	}
	return l.old[key]
}

func (l *lately[V]) forget(key string) {
	delete(l.young, key)
	delete(l.old, key)
}
