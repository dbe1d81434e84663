# Counts words and rewrites lines by regular expressions.
use strict;
use warnings;
my (%seen, $changed);
for my $round (1 .. 2) {
    open my $file, '<', $ARGV[0] or die;
    while (<$file>) {
        $seen{$_}++ for split;
        $changed++ if s/([0-9a-f])([0-9])\b/$2$1/g;
    }
}
print scalar(keys %seen), " $changed\n";
