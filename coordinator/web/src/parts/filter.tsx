// A field that filters the rows of a view. The address keeps what stands in it.

import { address, arrange } from '../address';
import { whole } from '../units';

const filterText = (): string => address.value.query.get('filter') ?? '';

/** The rows of which every word of the filter stands in one of the texts. */
export function filtered<Row>(rows: Row[], texts: (row: Row) => string[]): Row[] {
  const words = filterText().toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return rows;
  return rows.filter(row => {
    const all = texts(row).map(text => text.toLowerCase());
    return words.every(word => all.some(text => text.includes(word)));
  });
}

/** `name` says what is filtered and by what; `shown` of `total` rows are left. */
export function Filter({ name, shown, total }: { name: string; shown: number; total: number }) {
  const text = filterText();
  return (
    <p class="filter" role="search">
      <label>
        {name}{' '}
        <input
          type="search"
          value={text}
          spellcheck={false}
          autocomplete="off"
          onInput={event => arrange({ filter: event.currentTarget.value })}
        />
      </label>{' '}
      <span class="soft" role="status">
        {text ? `${whole(shown)} of ${whole(total)}` : ''}
      </span>
    </p>
  );
}
