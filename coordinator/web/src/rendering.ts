// The one way of text into the document: each text and each attribute that is shown or read out
// goes through here, and has its hidden characters written out. What is drawn on a canvas and the
// title of the tab call `visible` themselves.

import { options } from 'preact';

import { visible } from './visible';

/** Attributes that are shown or read out. The others, such as links and values, stay exact. */
const SHOWN = ['title', 'aria-label', 'aria-valuetext', 'data-title', 'placeholder'];

/** What Preact makes of an element, and of a text, whose type is null and whose text is `props`. */
type Made = { type: unknown; props: unknown };

const before = options.vnode;
options.vnode = vnode => {
  const made = vnode as Made;
  if (made.type === null) {
    if (typeof made.props === 'string') made.props = visible(made.props);
  } else if (typeof made.type === 'string') {
    const props = made.props as Record<string, unknown>;
    for (const name of SHOWN) {
      const value = props[name];
      if (typeof value === 'string') props[name] = visible(value);
    }
  }
  before?.(vnode);
};
