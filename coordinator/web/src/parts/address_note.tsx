// What of the address no view can read, such as steps that end before they begin: it is ignored,
// and the page says so.

import { ACCOUNTS } from '../account';
import { address, numberIn, rangeIn } from '../address';
import { parsed } from '../baseline';
import { TIMES } from './held_at';

/** How values of the address are read. */
const READERS: [isRead: (name: string, text: string) => boolean, names: string[]][] = [
  [name => rangeIn(name) !== null, ['steps', 'ranks', 'shown_steps', 'shown_ranks']],
  [name => numberIn(name) !== null, ['rank', 'attempt', 'device', 'at']],
  [(_, text) => Object.hasOwn(ACCOUNTS, text), ['account']],
  [(_, text) => parsed(text) !== null, ['baseline']],
  [(_, text) => TIMES.includes(text), ['held']],
];

export function AddressNote() {
  const { query } = address.value;
  const unread = READERS.flatMap(([isRead, names]) =>
    names.flatMap(name => {
      const text = query.get(name);
      return text && !isRead(name, text) ? [`${name}=${text}`] : [];
    }),
  );
  // A status is read out when its text changes, so it stands here without one, too.
  return (
    <div role="status">
      {unread.length ? <p class="soft">{`ignored in the address: ${unread.join(', ')}`}</p> : null}
    </div>
  );
}
