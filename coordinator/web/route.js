// Where the page is: everything after # in the address bar, which is all of its state.

export function route() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const parts = path
    .split('/')
    .filter(Boolean)
    .map(part => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { view: parts[0] ?? 'jobs', id: parts[1] ?? '', query: new URLSearchParams(query) };
}

/** Changes one value behind the question mark, without a new entry in the history. */
export function setQuery(name, value) {
  const { view, id, query } = route();
  query.set(name, value);
  location.replace(`#/${view}/${encodeURIComponent(id)}?${query}`);
}
