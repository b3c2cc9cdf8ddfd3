// A link to a view. What is in view needs none, and a report holds few views, and the steps of few
// ranks: there it is plain text.

import type { ComponentChildren } from 'preact';

import { address, link, type Values } from '../address';
import { hasSteps, isHere, paths } from '../api';

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
  const isInView = !values && address.value.view === view && address.value.id === id;
  const rank = view === 'job' ? values?.rank : null;
  const hasRank = typeof rank !== 'number' || hasSteps(rank);
  if (isInView || !hasRank || !isHere(NEEDED[view](id))) return <>{children}</>;
  return (
    <a href={link(view, id, values)} aria-keyshortcuts={keys} {...rest}>
      {children}
    </a>
  );
}
