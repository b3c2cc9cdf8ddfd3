// The address: everything after # is the state of the page, so that a link shows what its sender
// sees. A change of what is looked at is an entry of the browser's history; a change of how, such
// as the order of a table, is not.

import { computed, signal } from '@preact/signals';

export interface Address {
  view: string;
  id: string;
  query: URLSearchParams;
}

/** Steps or ranks from the first to the last, both included. */
export interface Span {
  from: number;
  to: number;
}

const hash = signal(location.hash);
window.addEventListener('hashchange', () => {
  hash.value = location.hash;
});

export const address = computed(() => parsed(hash.value));

function parsed(text: string): Address {
  const [path, query = ''] = text.replace(/^#\/?/, '').split('?');
  const parts = path.split('/').filter(Boolean).map(decoded);
  return { view: parts[0] ?? 'jobs', id: parts[1] ?? '', query: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Values of the address; null or an empty text takes one away. */
export type Values = Record<string, string | number | null>;

export function link(view: string, id = '', values: Values = {}): string {
  const query = changed(new URLSearchParams(), values).toString();
  const path = id ? `#/${view}/${encodeURIComponent(id)}` : `#/${view}`;
  return query ? `${path}?${query}` : path;
}

/** Changes values behind the question mark, with a new entry in the history. */
export function look(values: Values): void {
  location.hash = here(values);
}

/** Changes values behind the question mark in the present entry of the history. */
export function arrange(values: Values): void {
  location.replace(here(values));
}

/** The present address with other values. */
export function here(values: Values): string {
  const { view, id, query } = address.value;
  return link(view, id, Object.fromEntries(changed(query, values)));
}

function changed(query: URLSearchParams, values: Values): URLSearchParams {
  const made = new URLSearchParams(query);
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === '') made.delete(name);
    else made.set(name, String(value));
  }
  return made;
}

/** A whole number of the address; null where there is none. */
export function numberIn(name: string): number | null {
  const text = address.value.query.get(name) ?? '';
  return /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** A range of the address, such as `steps=100-200`; null where there is none. */
export function rangeIn(name: string): Span | null {
  const found = /^(\d{1,15})-(\d{1,15})$/.exec(address.value.query.get(name) ?? '');
  if (!found) return null;
  const [from, to] = [Number(found[1]), Number(found[2])];
  return from <= to ? { from, to } : null;
}

export const rangeAs = (range: Span | null): string | null => range && `${range.from}-${range.to}`;

/** The steps that are looked at; null where none are chosen. */
export const stepsIn = (): Span | null => rangeIn('steps');
