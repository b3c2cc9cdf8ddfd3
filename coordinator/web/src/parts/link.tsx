// A link to a view. A report holds few views: a link to another one is plain text there.

import type { ComponentChildren } from 'preact';

import { link, type Values } from '../address';
import { isHere, paths } from '../api';

/** The answers without which a view shows nothing. */
const NEEDED = {
  job: (id: string) => paths.ranks(id, null),
  incident: paths.incident,
  capture: paths.capture,
  nodes: () => paths.nodes,
} satisfies Record<string, (id: string) => string>;

interface LinkOf {
  view: keyof typeof NEEDED;
  id?: string;
  values?: Values;
  rel?: string;
  title?: string;
  keys?: string;
  children: ComponentChildren;
}

export function Link({ view, id = '', values, keys, children, ...rest }: LinkOf) {
  if (!isHere(NEEDED[view](id))) return <>{children}</>;
  return (
    <a href={link(view, id, values)} aria-keyshortcuts={keys} {...rest}>
      {children}
    </a>
  );
}
