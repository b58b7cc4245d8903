"""Names and numbers that tasks draw from.

Nano's tokenizer holds each as one token wherever it stands, so that copying a name is copying one token. None is a
shell command, a Python keyword or a word of an instruction.
"""

WORDS: tuple[str, ...] = tuple(
    """
acorn almond amber anchor antler apple apricot arrow aspen atlas autumn badger bagel bamboo banana barley basil
basket beacon beaver beetle berry birch bison blossom bonnet boulder branch brass breeze brick bridge bronze
brook buffalo butter button cabin cactus camel candle canoe canyon carpet carrot castle cedar cello chalk cherry
chestnut cider cinder citrus clover cobalt cobra cocoa coconut comet copper coral cotton cougar coyote crane
crater cricket crimson crown crystal cypress daisy dawn desert diamond dolphin donkey dragon drizzle eagle ebony
ember emerald falcon feather fennel fern ferry fiddle fig finch flame flint flute forest fossil fountain fox
frost galaxy garlic garnet gazelle ginger glacier goblet goose granite grape gravel grove guitar gull hammer
harbor harp hawk hazel heron hickory holly honey hornet horse igloo indigo iris ivory ivy jackal jade jaguar
jasmine jasper jelly juniper kayak kelp kettle kiwi koala lagoon lantern lark lavender lemon leopard lilac lily
lime linen lion lizard llama lobster lotus lynx magnet mango maple marble marigold meadow melon meteor mint
mirror mitten monsoon moose mosaic moss moth mountain mulberry mustard nectar needle nettle nickel nutmeg oak
oasis oat ocean olive onion opal orange orbit orchid otter owl oyster paddle palm panda panther papaya parrot
parsley peach peacock pear pearl pebble pecan pelican penguin pepper petal piano pigeon pillow pine planet plum
pocket pond poppy potato prairie prism puffin pumpkin quail quartz quill rabbit radish raven reef ribbon river
robin rocket rose ruby saddle saffron sail salmon sapphire satin scarlet sequoia shadow silk silver sleet snow
spark sparrow spice spider spruce squid stone storm stork summer sunset swan tango teal thistle thunder tiger
timber topaz trout tulip turnip turtle umber valley velvet violet viper walnut walrus water whale wheat willow
winter wolf wren yarrow zebra zephyr zinc
""".split()
)

NUMBERS: tuple[int, ...] = tuple(range(100))
